"""Other people's logs as runs of ours, marked as imported: one file for each format.

Tolerant of what logs suffer (restarts, torn lines, CRLF, colours, mixed encodings), strict about what
could not be read: every such line is reported with its number.
"""
