"""ctdeploy: from an editor to a verified, supervised run inside a Proxmox VE LXC container."""

__version__ = "0.1.0"
