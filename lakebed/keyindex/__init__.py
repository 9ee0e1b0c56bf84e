"""The key index: where the row of each key lies, on the local disk of whoever settles; rebuilt from the parts when lost."""
