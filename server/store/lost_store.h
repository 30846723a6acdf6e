// Tells a new state folder from one whose job store is lost: removed, emptied, or without its WAL.
// A new store in the place of a lost one would know no job, so every rank that runs would end.
#pragma once

#include <filesystem>

#include "absl/status/status.h"

namespace nsa::server {

// Whether SQLite would make the store <state_dir>/jobs.sqlite anew: it is missing or empty. Look
// before SQLite does: it deletes a WAL that has no database, and with it what could be saved.
bool HasNoStore(const std::filesystem::path& state_dir);

// DataLoss with the remedies if a coordinator has served from this folder, or a restore into it was
// interrupted. What the first start finds there does not count: a token, certificates, locks, the
// state of an agent.
absl::Status CheckMayBeNew(const std::filesystem::path& state_dir);

// DataLoss if a restore was interrupted: the folder may have files of both states.
absl::Status CheckRestored(const std::filesystem::path& state_dir);

// FailedPrecondition if the folder has a store, or a WAL of one.
absl::Status CheckHasNoStore(const std::filesystem::path& state_dir);

}  // namespace nsa::server
