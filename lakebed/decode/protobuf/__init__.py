"""Protobuf: schemas compiled, messages read into Arrow columns, natively or by google.protobuf."""
