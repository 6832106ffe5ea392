"""Does it hold? Kills, random histories, and planted bugs."""
