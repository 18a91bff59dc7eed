"""The sections of a page, in order; each is made of findings, and left out where there are none."""
