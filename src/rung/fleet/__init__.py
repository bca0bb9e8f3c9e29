"""``rung fleet``: unequal machines that serve models as one, over Ray.

::

    client ── HTTP ──► App of rung serve, on the head                     server/, head.py
                        │   Pool and Engine of the fleet                  pool.py, engine.py
                        ▼
                       Router: which node, when; pure, with a clock       router.py
                        │   requests and events over Ray Serve            deployments.py
    ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ┼ ─ ─ ─ ─ a replica per model and node ─ ─ ─ ─
                        ▼
                       Replica: EngineClient and its child process        replica.py

- ``rung fleet up`` makes a certificate authority and a token of Ray (``keys``), starts Ray
  with both (``ray_node.py``), and serves. ``rung fleet join`` shows a join token to the head over HTTPS
  (``control.py``) and gets a certificate of its own and Ray's token (``node.py``); then it starts Ray with them.
- A deployment of Ray Serve is a model on a class of devices: its replicas, one a node, give the same bytes.
- A node that ends takes no answer with it: the tokens that came are known to the engine of the head
  (``server/engines.py``), and another node goes on after them.
"""
