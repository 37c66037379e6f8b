"""A launch in flight: its timetable, transfers and rate, and where its data lie."""
