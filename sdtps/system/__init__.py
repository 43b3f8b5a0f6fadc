"""What SDTPS stands on: the command line, errors, files, several processes as one."""
