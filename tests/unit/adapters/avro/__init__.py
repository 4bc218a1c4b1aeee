"""The Avro codec from inside: schemas, registry, strict reading, old and new versions."""
