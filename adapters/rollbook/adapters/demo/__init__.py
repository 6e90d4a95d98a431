"""The demo: real workers behind a real router, killed at random under live traffic, and a report that judges the run.

`worker` is the inference server that stands in for a real one. `router`, `traffic` and `chaos` are what happens to
the fleet; `stage` puts them up and takes them down again; `live` shows it. What they saw becomes one `records.Run`,
and everything from there on (`history`, `served`, `checks`, `report`) is pure, so that a test can hand it a bad run.

Never here: anything that Rollbook needs to do its job. The demo uses it as anybody would.
"""
