"""The report: one HTML file that works offline, with the same tables and curves to hover and filter."""
