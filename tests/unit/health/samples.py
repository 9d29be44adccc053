"""Output of the tools, in the forms that the vendors' public pages show; the numbers are made up.

npu-smi: 910 and 910B with driver 23 and 24, A3 with driver 25, cards of one chip with driver 26, 310.
"""

from __future__ import annotations

MAP_910B = """\
\tNPU ID                         Chip ID                        Chip Logic ID                  Chip Name
\t2                              0                              0                              Ascend 910B3
\t2                              1                              -                              Mcu
\t5                              0                              1                              Ascend 910B3
\t5                              1                              -                              Mcu
"""

MAP_A3 = """\
\tNPU ID               Chip ID              Chip Logic ID        Chip Phy-ID          Chip Name
\t0                    0                    0                    0                    Ascend910
\t0                    1                    1                    1                    Ascend910
\t0                    2                    -                    -                    Mcu
\t1                    0                    2                    2                    Ascend910
"""

MAP_ONE_CHIP = """\
\tNPU ID               Slot ID              Chip Phy-ID          Chip Name
\t0                    9                    0                    Ascend950DT
\t1                    10                   1                    Ascend950DT
"""

ECC_910 = """\
\tNPU ID                                   : 1
\tChip Count                               : 1

\tDDR Single Bit Error Count               : 0
\tDDR Double Bit Error Count               : 0
\tHBM Single Bit Error Count               : 3
\tHBM Double Bit Error Count               : 0
\tHBM Single Bit Aggregate Total Err Cnt   : 14
\tHBM Double Bit Aggregate Total Err Cnt   : 0
\tHBM Single Bit Isolated Pages Count      : 0
\tHBM Double Bit Isolated Pages Count      : 0
\tChip ID                                  : 0
"""

ECC_910B = """\
\tHBM Single Bit Error Count               : 0
\tHBM Double Bit Error Count               : {double}
\tHBM Single Bit Aggregate Total Err Cnt   : 7
\tHBM Double Bit Aggregate Total Err Cnt   : {double}
\tHBM Single Bit Isolated Pages Count      : 0
\tHBM Double Bit Isolated Pages Count      : 0
\tHBM Single Bit Next-Isolated Pages Count : 0
\tHBM Double Bit Next-Isolated Pages Count : 0
"""

ECC_TWO_CHIPS = """\
        NPU ID                                   : 0
        Chip Count                               : 2

        HBM Single Bit Error Count               : 1
        HBM Double Bit Error Count               : 0
        Chip ID                                  : 0

        HBM Single Bit Error Count               : 0
        HBM Double Bit Error Count               : 2
        Chip ID                                  : 1
"""

ECC_310 = """\
        Single-bit Error Count                   : 4
        Double-bit Error Count                   : 1
"""

HEALTH_OK = """\
        Health Status                  : OK
        Error Code                     : NA
        Error Information              : NA
"""

HEALTH_ALARM = """\
        Health Status                  : Alarm
        Error Code                     : 80E01801 81078603
        Error Information              : multi-bit error of the high-bandwidth memory

                                       : link down
"""

HEALTH_ALL_CHIPS = """\
        NPU ID                         : 0
        Chip Count                     : 1

        Chip ID                        : 0
        Health                         : Warning

        Health                         : OK
        Chip Name                      : MCU
"""

HCCS = """\
\thccs health status             : {health}
\thccs lane mode                 : [4                    4                    4                    ]
\thccs link lane list            : [1111                 1111                 1111                 ]
\thccs tx packets                : [1993002168           1434439505           1588783520           ]
\thccs rx packets                : [2091328898           760745014            4126456722           ]
\thccs retry count               : [2                    0                    1                    ]
\thccs error count               : [0                    0                    {errors}                    ]
\thccs first error lane          : NA
"""

NO_HCCS = "This device does not support querying hccs.\n"

TEMPERATURE = """\
        NPU ID                         : 2
        Chip Count                     : 1

        NPU Temperature (C)            : 49
        Chip ID                        : 0

        LM75A_TE (C)                   : 36
        Chip Name                      : MCU
"""

MEMORY = """\
        NPU ID                         : 2
        Chip Count                     : 1

        DDR Capacity(MB)               : 0
        DDR Clock Speed(MHz)           : 0
        HBM Capacity(MB)               : 65536
        HBM Clock Speed(MHz)           : 1600
        HBM Temperature(C)             : 52
        HBM Manufacturer ID            : 0x56
        Chip ID                        : 0
"""

BOARD = """\
        NPU ID                         : 2
        Product Name                   : NA
        Serial Number                  : 1025X0000001
        Software Version               : 24.1.0
        Firmware Version               : 7.5.0.1.129
        Compatibility                  : OK
        PCIe Bus Info                  : 0000:C1:00.0
        Chip Count                     : 1
"""


def npu_smi(double: int = 0, health: str = HEALTH_OK, hccs: str | None = None) -> dict[str, str]:
    """What each question to a 910B prints, by the words after ``npu-smi info``."""
    return {
        "-m": MAP_910B,
        "-t ecc -i 5 -c 0": ECC_910B.format(double=double),
        "-t health -i 5 -c 0": health,
        "-t hccs -i 5 -c 0": HCCS.format(health="OK", errors=0) if hccs is None else hccs,
        "-t temp -i 5 -c 0": TEMPERATURE,
        "-t memory -i 5 -c 0": MEMORY,
        "-t board -i 5": BOARD,
    }
