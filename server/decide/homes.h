// Where the ranks of a job's latest generations ran: a rank's records and logs are taken from that
// node only, also after the job has left it.
#pragma once

#include <cstdint>
#include <string>

#include "nsa/v1/store.pb.h"

namespace nsa::server {

// Generations of a job whose nodes are kept.
inline constexpr int kKeptHomes = 32;

// Notes the placements of the job's current generation. Nothing before the first generation,
// without placements, and when they are noted already.
void NoteHomes(v1::StoredJob* stored);

// The node of a rank; empty when it is not known.
std::string HomeOf(const v1::StoredJob& stored, int64_t generation, int32_t rank);

// Whether the node has a rank of the job, or had one in the generations that are kept.
bool HasRunOn(const v1::StoredJob& stored, const std::string& node);

}  // namespace nsa::server
