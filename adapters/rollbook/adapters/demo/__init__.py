"""The demo: real workers behind a real router, killed at random under live traffic, and a report that judges the run.

`worker` is the inference server that stands in for a real one (`server` as a program of its own); `router`, `cluster`
and `traffic` are what else there is. `stage` puts all up, lets it run and takes it down again. It is one of two kinds:
`calm`, with the controller in the demo's own process and a schedule of kills (`chaos`); or `storm`, with everything as
processes (`programs`), a schedule of faults of all kinds (`faults`, pure), and `arms` that carry it out. `live` shows
it. What they saw becomes one `records.Run`, and everything from there on (`history`, `served`, `checks`, `report`) is
pure, so that a test can hand it a bad run.

Never here: anything that Rollbook needs to do its job. The demo uses it as anybody would.
"""
