"""Interactive pages: one HTML file each, which needs nothing else and asks for nothing.

``schedule_page`` shows a schedule: its steps on the network, a chunk's way, and every link over
time; its template is also that of ``tensorstate``'s plans. Styles and scripts are in
``assets``, without any framework.
"""

from jaxcoll.pages.schedule_page import schedule

__all__ = ["schedule"]
