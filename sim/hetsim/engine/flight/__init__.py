"""A launch under way: its timetable, its transfers, its rate, and where its data lie."""
