"""What a running controller shows of itself over HTTP: metrics, health and a read API, on one port.

Belongs here: measuring (`metrics`, `fleet_metrics`), judging whether it is ready (`health`), and answering GET
(`server`, `views`). Never here: anything that changes the fleet or a proxy; whoever reaches the port is asked for no
password.
"""
