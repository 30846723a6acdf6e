// A job's buckets as columns with names (GetCurvesResponse). Pure.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nsa/v1/curves.pb.h"
#include "nsa/v1/store.pb.h"

namespace nsa::server {

// The columns that a reader wants; empty means all.
using ColumnNames = google::protobuf::RepeatedPtrField<std::string>;

// What the entries of buckets are: values of a step, or values of its layers one after another.
enum class Entries { kOfStep, kOfLayers };

// The first of `wanted` that is no column at all; empty when there is none.
std::string UnknownColumn(const ColumnNames& wanted);

// True when one of `names` is wanted.
bool WantsAny(const ColumnNames& wanted, std::span<const std::string_view> names);

// The wanted columns of `names` (kStepValues, kLayerValues or kGpuValues), in their order. All
// layers of a step together are one value.
v1::CurveTable TableOf(const std::vector<v1::CurveBucket>& buckets,
                       std::span<const std::string_view> names, Entries entries,
                       const ColumnNames& wanted);

// Records with `eval`, in order of steps. Beyond `most`, each group of neighbours is the one with
// the lowest loss.
v1::ValidationCurve ValidationsOf(const std::vector<v1::WorkerRecord>& records, size_t most);

}  // namespace nsa::server
