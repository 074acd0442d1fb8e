"""Interactive pages: one HTML file each, which needs nothing else and asks for nothing.

``schedule`` shows a schedule: its steps on the network, a chunk's way, and every link over time.
``template`` is the page around it, which ``tensorstate`` uses for plans. Styles and scripts are in
``assets``, without any framework.
"""

from jaxcoll.pages.schedule_page import schedule

__all__ = ["schedule"]
