"""The report of a sweep: one HTML page without outside references, figures and tables as files."""

from sparrow_analysis.report.write import Report, write_report

__all__ = ["Report", "write_report"]
