"""What runs inside the container: stdlib only, Python 3.9 and newer, under `python -I -S`, nothing installed.

The modules of this package travel as text on the standard input of a `pct exec` (see ctdeploy.remote.payload) and
import each other by the same names there as here.
"""

# Reads "<length>\n<source>" from descriptor 0 without reading ahead, so that what follows belongs to the source.
BOOT = (
    "import os;f=os.fdopen(0,'rb',0,closefd=False);n=int(f.readline() or os._exit(0));s=b'';"
    "g=lambda:globals().update(s=s+(f.read(n-len(s)) or os._exit(0)));"
    "[g() for _ in iter(lambda:len(s)<n,False)];exec(s)"
)
