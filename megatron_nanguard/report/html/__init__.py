"""The report as one HTML file that opens offline: no network, no server, no second file.

    Path("report.html").write_text(report_html(open_incident(incident, directory)), encoding="utf-8")

The page has the same sections as the terminal; some of them are drawn as pictures.
"""
