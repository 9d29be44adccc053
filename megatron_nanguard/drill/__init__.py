"""Plant faults, so that users see their set-up find one: `--nanguard-drill SPEC`.

Read `spec` for what a drill is, `grammar` for how it is written, `planted_drills` for what plants and counts them. The
phases are in `forward`, `backward` and `main_grad`. Nothing of diagnosis imports this room: the diagnosis must not know
where the fault is.
"""
