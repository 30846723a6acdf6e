// What the page's replies consist of: jobs, machines, events and curves as JSON. Times are Unix
// milliseconds, losses nats a token. Numbers that are not finite are null.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "nsa/v1/checkpoint.pb.h"
#include "nsa/v1/job_health.pb.h"
#include "nsa/v1/job_status.pb.h"
#include "nsa/v1/node.pb.h"
#include "nsa/v1/store.pb.h"
#include "server/decide/curve.h"
#include "server/store/job_store.h"

namespace nsa::server {

using Json = nlohmann::json;

// The text of a reply; bytes that are not UTF-8 become U+FFFD.
std::string Text(const Json& json);

// The body of a request; an empty one is {}. InvalidArgument for what is not a JSON object.
absl::StatusOr<Json> ParseBody(const std::string& body);

// What is wrong with a job, the worst first; and one of these.
Json ProblemsJson(const v1::Job& job);
Json ProblemJson(const v1::Problem& problem);

// A row of the list of jobs. `job` has its ranks filled in.
Json RowJson(const v1::Job& job, int64_t now_unix_nanos);

// Everything about a job except its curves: the row, ranks, configuration, waivers, warnings.
Json JobJson(const v1::StoredJob& stored, const v1::Job& view, double peak_flops,
             int64_t now_unix_nanos);

// A machine, with the names of its jobs by id; a job without one has its id. What NVML does not
// report of a GPU (use: 0 to 1, celsius, watts) is null.
Json NodeJson(const v1::Node& node, const std::map<std::string, std::string>& names = {});
Json EventJson(const v1::JobEvent& event);
Json CheckpointJson(const v1::CheckpointInfo& checkpoint);

// Heat maps: {width, layers, step[], values: {name: [layer][bucket]}}. Of gate_collapse the
// greatest of each bucket, of gate_entropy_min and mass_kept_p10 the least, of others the mean.
Json LayersJson(const std::vector<v1::CurveBucket>& buckets);

// Validations by name: {name: {step[], time[], loss[]}}.
Json EvalsJson(const std::vector<v1::WorkerRecord>& records);

// The same for the named sets of data.val: {set: {step[], time[], loss[]}}; {} without any.
Json ValSetCurvesJson(const std::vector<v1::WorkerRecord>& records);

// What a job wrote after validations: {steps[], step, samples[{prompt, text, tokens, seconds, time,
// error}]}; the samples are those of `step`.
Json SamplesJson(const JobStore::Samples& samples);

}  // namespace nsa::server
