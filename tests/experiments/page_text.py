"""The text of an HTML page."""

from html.parser import HTMLParser


class Text(HTMLParser):
    """The words of a page, and whether it loads anything."""

    def __init__(self, page):
        super().__init__()
        self.words, self.loads = [], []
        self.feed(page)

    def __str__(self):
        return " ".join(self.words)

    def handle_data(self, data):
        self.words += data.split()

    def handle_starttag(self, tag, attrs):
        self.loads += [
            value
            for name, value in attrs
            if name in ("src", "href") and not value.startswith(("data:", "#"))
        ]
