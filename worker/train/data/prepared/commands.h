// What nsa-worker does on request with the data of a job: count, prepare, inspect. The answers are
// JSON.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace nsa::train {

// Reads the data as training does, and compares every hash of prepared data: a CorpusSummary.
absl::StatusOr<std::string> CountDataCommand(const std::filesystem::path& job);

// Prepares the data into the folder `out`, and logs how far it is: a PreparedData.
absl::StatusOr<std::string> PrepareDataCommand(const std::filesystem::path& job,
                                               const std::filesystem::path& out);

// Inspects job files (names that end in .yaml or .yml), or else files and folders: a
// DataInspection.
absl::StatusOr<std::string> InspectDataCommand(const std::vector<std::string>& what);

}  // namespace nsa::train
