"""Another table of lakebed as a source: its change rows become changes of this one."""
