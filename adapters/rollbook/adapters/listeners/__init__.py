"""Drop-ins for RL frameworks: objects with the shapes that their trainers call, and what they need in common.

Belongs here: turning a framework's calls into facts, and its look-ups into a provider. Never here: an import of any
framework, a call to a proxy, a decision about who is registered.
"""
