"""From what all ranks know to where it began and why: functions over records, without any device or file.

    concluded = conclude(merged, traces, earlier, host_options)

`concluding` joins the traces of the ranks (`joining/`) into origin and path of infection, and makes a `Case` of the
incident. Every rule of `rules/` weighs one cause; `verdict` ranks them and adds the next step (`next_steps/`). `advice`
names the known patterns that the case shows.
"""
