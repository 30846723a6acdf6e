// The ranks of a job as a context group (model/context/context_group.h), over the connections that
// they have anyway: ranks g·N to g·N + N − 1 are group g, and rank c of it has index c.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "nsa/v1/job.pb.h"
#include "worker/train/comm/comm.h"
#include "worker/train/comm/nccl_comm.h"
#include "worker/train/model/context/context_group.h"

namespace nsa::train {

// InvalidArgument unless `ranks` ranks are whole groups, and a batch gives each group as many
// sequences.
absl::Status CheckShare(const v1::JobSpec& spec, int32_t ranks);

// Group of `size` ranks, which divides the world size; null for 1. Over the TCP ring, in host
// memory: an exchange waits for its end, and all ranks of the job take part in it, as in every
// collective of `comm`, which outlives the group.
std::unique_ptr<ContextGroup> ContextOverTcp(Comm* comm, int32_t size);

// The same with NCCL, in device memory. An exchange enqueues sends and receives as one operation on
// the stream, and copies for the rank's own pieces. `comm` outlives the group.
std::unique_ptr<ContextGroup> ContextOverNccl(NcclComm* comm, int32_t size);

}  // namespace nsa::train
