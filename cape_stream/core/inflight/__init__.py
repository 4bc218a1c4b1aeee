"""The in-flight state: subject → topology → lambda, with its job records and parked events."""
