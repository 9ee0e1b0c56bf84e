"""The key index: where the row of each key is, on local disk of the process that settles; rebuilt from the parts when lost."""
