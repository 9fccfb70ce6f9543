"""Types that cross a process boundary."""
