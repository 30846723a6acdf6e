// The curves of a job as JSON, written without a tree of values in between: of a long job they are
// some 80,000 numbers, and a browser waits for them.
#pragma once

#include <string>
#include <vector>

#include "nsa/v1/store.pb.h"

namespace nsa::server {

// {"width": steps, "step": [], "time": [], "tokens": [], "values": {NAME: {"mean": [], "min": [],
// "max": []}}} with the names of kStepValues (server/decide/curve.h). `time` is in Unix
// milliseconds. What was not measured is null; so are min and max where they are the mean, for
// example in a bucket of one step. Numbers are the shortest that are the same float.
std::string StepsText(const std::vector<v1::CurveBucket>& buckets);

// The same of the job's GPUs, with kGpuValues. {} when nothing was measured.
std::string GpusText(const std::vector<v1::CurveBucket>& buckets);

}  // namespace nsa::server
