"""What only the embedded log has: its assignor, its retention, its memory and its folder."""
