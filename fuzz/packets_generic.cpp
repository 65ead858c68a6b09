#define LOGRAD_ISA generic
#include "kernels/packets/packets.isa.h"

namespace lograd {
namespace generic {
extern const PacketKernels& packets;
const PacketKernels& packets = kPackets;
}  // namespace generic
}  // namespace lograd
