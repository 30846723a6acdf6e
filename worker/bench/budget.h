// What the kernels of the attention execute, from how they divide their work
// (kernels/nsa/branch/tile_sizes.h): whole tiles, with rows that have no token and keys that a row
// does not see, and partial rows. Beside what the mathematics needs (families.h) it says where a
// kernel's time goes. Pure.
//
// The selected branch's numbers are expected ones of blocks that are chosen at random, as in
// nsa-bench, without documents. In code for sm_80, dq with keys of 192 takes thinner tiles beside a
// large union of blocks; they are not counted.
#pragma once

#include "common/nsa/branch.h"
#include "common/nsa/nsa_shape.h"

namespace nsa::bench {

// The two codes that each kernel is compiled to (KernelArchitecture() of kernels/cuda/device.h).
// They multiply by warps and, for sm_90a with heads of 64 and wider, by warp groups of 64 rows.
enum class KernelCode { kSm80, kSm90a };

// Instructions and bytes of shared memory are lower bounds: they are derived from the equations and
// the tiles, not counted in the machine code.
//
// - instructions, a warp's each: the products; the loads of their operands where a warp loads them
//   (ldmatrix); a multiplication and addition, an exponential, and what else each logit takes
//   (budget.cc has the list); copies of 16 bytes for each lane. Not in it: addresses, loops,
//   barriers, masks, the building of unions and lists, the sum of partial rows, and the choice of
//   blocks after their scores.
// - bytes of shared memory: tiles written to it, and the operands of the products read from it. A
//   warp group reads both operands of a product once, or one if the other is in registers; a warp
//   loads its 16 rows and the whole other tile. Not in it: statistics and plans of rows.
struct Executed {
  double flops = 0;          // of the matrix unit
  double exponentials = 0;   // of the weights
  double instructions = 0;   // issued, one for the 32 threads of a warp
  double shared_bytes = 0;   // read and written in shared memory
  double partial_bytes = 0;  // of partial rows by key block, written once and read once

  Executed& operator+=(const Executed& other) {
    flops += other.flops;
    exponentials += other.exponentials;
    instructions += other.instructions;
    shared_bytes += other.shared_bytes;
    partial_bytes += other.partial_bytes;
    return *this;
  }
};

Executed ExecutedForward(const NsaShape& shape, Branch branch, KernelCode code);
Executed ExecutedBackward(const NsaShape& shape, Branch branch, KernelCode code);

// Block selection, which gets the log-sum-exp of the compressed branch. Its code for sm_90a
// multiplies by warps too.
Executed ExecutedSelection(const NsaShape& shape);

}  // namespace nsa::bench
