"""What only the table on RocksDB has: its folder, its budget and its damage."""
