"""A run's report as one page: HTML that needs no other file, no network and no JavaScript."""

from pscale.report.page.render import render_page

__all__ = ["render_page"]
