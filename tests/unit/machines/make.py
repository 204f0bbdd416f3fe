"""Writes the machines that the tests of the topology read, as hwloc XML: what is known of such machines from their
vendors' public descriptions (cores, which GPU and which NIC share a switch, PCI addresses), in no machine's own words.

Usage: make.py    writes dgx-h100.xml, gb200-tray.xml, laptop.xml and two-rails.xml beside itself
"""

import itertools
import pathlib

HERE = pathlib.Path(__file__).parent
GIB = 1 << 30
OPENFABRICS, NETWORK = 3, 2


def bits(numbers):
    """hwloc's text of a set: 32 bits at a time, highest first."""
    value = sum(1 << n for n in numbers)
    words = []
    while value or not words:
        words.insert(0, f"0x{value & 0xffffffff:08x}")
        value >>= 32
    return ",".join(words)


class Writer:
    def __init__(self):
        self.lines, self.depth, self.ids = [], 1, itertools.count(1)

    def put(self, text):
        self.lines.append("  " * self.depth + text)

    def open(self, kind, **attributes):
        words = " ".join(f'{k}="{v}"' for k, v in attributes.items())
        self.put(f'<object type="{kind}" gp_index="{next(self.ids)}" {words}>')
        self.depth += 1

    def close(self):
        self.depth -= 1
        self.put("</object>")

    def leaf(self, kind, **attributes):
        self.open(kind, **attributes)
        self.close()

    def place(self, processors, nodes):
        return {"cpuset": bits(processors), "complete_cpuset": bits(processors), "nodeset": bits(nodes),
                "complete_nodeset": bits(nodes)}

    def node(self, number, processors, gib, **more):
        self.leaf("NUMANode", os_index=number, **self.place(processors, [number]), local_memory=gib * GIB, **more)

    def core(self, number, processors, nodes):
        self.open("Core", os_index=number, **self.place(processors, nodes))
        for p in processors:
            self.leaf("PU", os_index=p, **self.place([p], nodes))
        self.close()

    def bridge(self, domain, first, last, depth, host):
        more = {} if host else {"pci_busid": f"{domain:04x}:{max(first - 1, 0):02x}:01.0", "pci_type": "0604 [1000:c030] [0000:0000] b0",
                                "pci_link_speed": "63.015385"}
        self.open("Bridge", bridge_type="0-1" if host else "1-1", depth=depth,
                  bridge_pci=f"{domain:04x}:[{first:02x}-{last:02x}]", **more)

    def pci(self, address, kind, name, *devices):
        self.open("PCIDev", pci_busid=address, pci_type=kind, pci_link_speed="63.015385")
        self.put(f'<info name="PCIDevice" value="{name}"/>')
        for device, osdev, info in devices:
            self.open("OSDev", name=device, osdev_type=osdev)
            for key, value in info.items():
                self.put(f'<info name="{key}" value="{value}"/>')
            self.close()
        self.close()

    def gpu(self, address, model, device):
        self.pci(address, f"0302 [10de:{device:04x}] [10de:0000] a1", model)

    def nic(self, address, name, netdev, state=4, model="ConnectX-7"):
        self.pci(address, "0207 [15b3:1021] [15b3:0000] 00", model, (netdev, NETWORK, {}),
                 (name, OPENFABRICS, {"Port1State": state}))

    def save(self, name, processors, nodes, body):
        self.open("Machine", os_index=0, **self.place(processors, nodes), allowed_cpuset=bits(processors),
                  allowed_nodeset=bits(nodes))
        body(self)
        self.close()
        head = ['<?xml version="1.0" encoding="UTF-8"?>', '<!DOCTYPE topology SYSTEM "hwloc2.dtd">', '<topology version="2.0">']
        (HERE / name).write_text("\n".join(head + self.lines + ["</topology>"]) + "\n")


def behind_switch(w, bus, gpu, nic):
    """A host bridge, a root port, a PCIe switch, and below two of its ports a GPU and a NIC."""
    w.bridge(0, bus, bus + 4, 0, True)
    w.bridge(0, bus + 1, bus + 4, 1, False)
    w.bridge(0, bus + 2, bus + 4, 2, False)
    w.bridge(0, nic[0], nic[0], 3, False)
    w.nic(f"0000:{nic[0]:02x}:00.0", nic[1], nic[2])
    w.close()
    w.bridge(0, gpu, gpu, 3, False)
    w.gpu(f"0000:{gpu:02x}:00.0", "H100 SXM5 80GB", 0x2330)
    w.close()
    for _ in range(3):
        w.close()


def dgx_h100(w):
    """Two packages of 56 cores with two threads; four GPUs each, a NIC behind the switch of each; two more NICs for
    storage beside each package; one Ethernet port for the administrator."""
    trees = [[(0x17, 0x1b, (0x18, "mlx5_0", "ibp24s0")), (0x3f, 0x43, (0x40, "mlx5_3", "ibp64s0")),
              (0x4e, 0x52, (0x4f, "mlx5_4", "ibp79s0")), (0x5d, 0x61, (0x5e, "mlx5_5", "ibp94s0"))],
             [(0x99, 0x9d, (0x9a, "mlx5_6", "ibp154s0")), (0xbf, 0xc3, (0xc0, "mlx5_9", "ibp192s0")),
              (0xcd, 0xd1, (0xce, "mlx5_10", "ibp206s0")), (0xdb, 0xdf, (0xdc, "mlx5_11", "ibp220s0"))]]
    storage = [(0x29, "mlx5_1", "mlx5_2"), (0xaa, "mlx5_7", "mlx5_8")]
    for package in range(2):
        cores = range(56 * package, 56 * package + 56)
        processors = [p for c in cores for p in (c, c + 112)]
        w.open("Package", os_index=package, **w.place(processors, [package]))
        w.node(package, processors, 1024)
        for c in cores:
            w.core(c, [c, c + 112], [package])
        for tree in trees[package]:
            behind_switch(w, *tree)
        bus, first, second = storage[package]
        w.bridge(0, bus - 1, bus, 0, True)
        w.bridge(0, bus, bus, 1, False)
        w.nic(f"0000:{bus:02x}:00.0", first, f"ens{bus}f0np0")
        w.nic(f"0000:{bus:02x}:00.1", second, f"ens{bus}f1np1")
        w.close()
        w.close()
        if package == 0:
            w.bridge(0, 0x00, 0x02, 0, True)
            w.pci("0000:02:00.0", "0200 [8086:1563] [8086:0000] 01", "X550", ("eno3", NETWORK, {}))
            w.close()
        w.close()


def gb200_tray(w):
    """Two Grace processors of 72 cores, two Blackwell GPUs each, whose memory is a node without cores; GPUs, NICs
    and one DPU per processor have PCI domains of their own."""
    parts = [([(2, "0008:01:00.0"), (10, "0009:01:00.0")], [("0000:03:00.0", "mlx5_0", "ibp3s0"),
              ("0002:03:00.0", "mlx5_1", "ibP2p3s0"), ("0006:03:00.0", "mlx5_2", "enP6p3s0f0np0")]),
             ([(18, "0018:01:00.0"), (26, "0019:01:00.0")], [("0010:03:00.0", "mlx5_3", "ibP16p3s0"),
              ("0012:03:00.0", "mlx5_4", "ibP18p3s0"), ("0016:03:00.0", "mlx5_5", "enP22p3s0f0np0")])]
    for package, (gpus, nics) in enumerate(parts):
        cores = range(72 * package, 72 * package + 72)
        nodes = [package] + [n for n, _ in gpus]
        w.open("Package", os_index=package, **w.place(cores, nodes))
        w.node(package, cores, 480)
        for n, _ in gpus:
            w.node(n, cores, 186, subtype="GPUMemory")
        for c in cores:
            w.core(c, [c], nodes)
        for address, kind in sorted([(a, None) for _, a in gpus] + [(n[0], n) for n in nics]):
            domain = int(address[:4], 16)
            w.bridge(domain, 0, 3, 0, True)
            w.bridge(domain, int(address[5:7], 16), int(address[5:7], 16), 1, False)
            if kind is None:
                w.gpu(address, "GB200", 0x2941)
            else:
                w.nic(*kind, model="BlueField-3" if "en" in kind[2] else "ConnectX-7")
            w.close()
            w.close()
        w.close()


def laptop(w):
    """Six cores with two threads and eight with one; graphics that are no GPU of ours; wireless alone."""
    everything = range(20)
    w.open("Package", os_index=0, **w.place(everything, [0]))
    w.node(0, everything, 32)
    for c in range(6):
        w.core(4 * c, [2 * c, 2 * c + 1], [0])
    for e in range(8):
        w.core(24 + e, [12 + e], [0])
    w.close()
    w.bridge(0, 0, 1, 0, True)
    w.pci("0000:00:02.0", "0300 [8086:46a6] [0000:0000] 0c", "Iris Xe")
    w.pci("0000:00:14.3", "0280 [8086:51f0] [8086:0000] 01", "Wi-Fi 6E", ("wlp0s20f3", NETWORK, {}))
    w.close()


def two_rails(w):
    """No machine of anybody's: two packages of one core, an RDMA device beside each, whose interfaces have the names
    that tests/multi/test_nic.sh gives to its own."""
    for package in range(2):
        w.open("Package", os_index=package, **w.place([package], [package]))
        w.node(package, [package], 1)
        w.core(package, [package], [package])
        w.bridge(0, 2 * package, 2 * package + 1, 0, True)
        w.nic(f"0000:{2 * package + 1:02x}:00.0", f"rail{package}", f"eth{package}")
        w.close()
        w.close()


Writer().save("dgx-h100.xml", range(224), range(2), dgx_h100)
Writer().save("gb200-tray.xml", range(144), [0, 1, 2, 10, 18, 26], gb200_tray)
Writer().save("laptop.xml", range(20), [0], laptop)
Writer().save("two-rails.xml", range(2), range(2), two_rails)
