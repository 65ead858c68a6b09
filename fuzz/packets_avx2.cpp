#define LOGRAD_ISA avx2
#include "kernels/packets/packets.isa.h"

namespace lograd {
namespace avx2 {
extern const PacketKernels& packets;
const PacketKernels& packets = kPackets;
}  // namespace avx2
}  // namespace lograd
