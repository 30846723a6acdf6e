// What the attention kernels execute, from how they divide their work (kernels/nsa/branch/, sm_90a
// code): whole tiles, with rows that have no token and keys that a row does not see, and partial
// rows. Beside what the mathematics needs (families.h) it says where a kernel's time goes. Pure.
//
// The selected branch's numbers are expected ones of blocks that are chosen at random, as in
// nsa-bench, without documents.
#pragma once

#include "common/nsa/branch.h"
#include "common/nsa/nsa_shape.h"

namespace nsa::bench {

struct Executed {
  double flops = 0;          // of the matrix unit
  double exponentials = 0;   // of the weights
  double partial_bytes = 0;  // of partial rows by key block, written once and read once

  Executed& operator+=(const Executed& other) {
    flops += other.flops;
    exponentials += other.exponentials;
    partial_bytes += other.partial_bytes;
    return *this;
  }
};

Executed ExecutedForward(const NsaShape& shape, Branch branch);
Executed ExecutedBackward(const NsaShape& shape, Branch branch);

}  // namespace nsa::bench
