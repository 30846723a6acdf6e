// Whether all ranks have read the same data. Ranks on one machine have; ranks on several machines
// read files of their own, and would train on whatever lies there.
#pragma once

#include <span>
#include <string>

#include "absl/status/status.h"
#include "nsa/v1/worker.pb.h"
#include "worker/train/comm/comm.h"
#include "worker/train/data/fingerprint.h"
#include "worker/train/data/loader.h"

namespace nsa::train {

// Compares the data of this rank with that of rank 0. A collective; if all are equal, it exchanges
// 64 bytes. `fingerprint` is of everything; ranks with equal fingerprints have the same data.
// `parts` are what it is made of, only to find what differs.
//
// FailedPrecondition on every rank, with the same text, if a rank has other data: it names the
// first part in which the lowest such rank differs from rank 0.
absl::Status CheckSameData(const std::string& fingerprint, std::span<const DataPart> parts,
                           Comm* comm);

// The same for the data and the tokenizer that the ranks of a launch have read, if they run on
// several machines. Nothing is compared once a rank has replaced its data by generated tokens,
// which the job must allow.
absl::Status CompareData(const v1::WorkerLaunch& launch, const DataLoader& data, Comm* comm);

}  // namespace nsa::train
