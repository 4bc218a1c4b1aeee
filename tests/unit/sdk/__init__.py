"""What users write: declarations, batches, results, loading, pings."""
