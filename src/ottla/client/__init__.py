"""What the network thread of a client runs: state machines and request managers that are asked and never act."""
