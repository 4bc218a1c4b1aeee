"""The Avro codec from inside: schemas, registry, strict reading, quick paths, old and new versions."""
