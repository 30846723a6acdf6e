// A job's curves in bounded space: steps are kept in buckets of equal width, and when there are too
// many buckets each two become one of twice the width. A bucket keeps the mean, the least and the
// greatest of every value, so a spike stays visible in a curve of a million steps. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "common/record/quantities.h"
#include "nsa/v1/fleet.pb.h"
#include "nsa/v1/store.pb.h"
#include "nsa/v1/telemetry.pb.h"

namespace nsa::server {

// The names of the values of a step, in the order of the entries of a bucket. Buckets on disk may
// be of another version of the program, with other names in another order (Arranged()).
inline constexpr auto kStepValues = record::kCurveNames<record::Of::kStep>;

// The values of each layer of a step. An entry's index is layer · kLayerValueCount + value.
inline constexpr auto kLayerValues = record::kCurveNames<record::Of::kLayer>;
inline constexpr size_t kLayerValueCount = kLayerValues.size();

// What agents measure of the GPUs of a job.
inline constexpr auto kGpuValues = record::kCurveNames<record::Of::kGpu>;

// At most this many buckets are kept of a job's steps, and kLayerBuckets of its layers and its
// GPUs.
inline constexpr size_t kStepBuckets = 2'048;
inline constexpr size_t kLayerBuckets = 512;

// One step as a bucket of width 1: its values, or those of its layers.
v1::CurveBucket StepBucket(const v1::WorkerRecord& record);
v1::CurveBucket LayerBucket(const v1::WorkerRecord& record);

// The GPUs of a job at the step of `record`, as a bucket of width 1: the mean, the least and the
// greatest of them; `count` is the number of GPUs whose driver reports the value. Without entries
// when none reports any.
v1::CurveBucket GpuBucket(const v1::WorkerRecord& record, const std::vector<v1::GpuInfo>& gpus);

// Where the entries of a bucket are that follow another list of names.
struct EntryOrder {
  int stride = 1;           // names in that list; of layers each has so many entries
  std::vector<int> places;  // by name of ours: its place in that list, −1: it is not there
};
EntryOrder OrderOf(const v1::StoredColumns& stored, std::span<const std::string_view> names);

// The same bucket with its entries in our order. Values whose names we do not know are left out;
// names that it does not have were not measured.
v1::CurveBucket Arranged(const v1::CurveBucket& stored, const EntryOrder& order);

// The first step of the `width`-wide bucket that contains `step`.
int64_t BucketStart(int64_t step, int64_t width);

// Adds a later bucket to `into`, which may have no steps yet. `into` keeps its width.
void MergeInto(const v1::CurveBucket& later, v1::CurveBucket* into);

// The same steps in buckets of `width`, a multiple of the present one. `buckets` are in order.
std::vector<v1::CurveBucket> Widen(const std::vector<v1::CurveBucket>& buckets, int64_t width);

// The smallest width, a power of two times the present one, with at most `limit` buckets.
int64_t WidthFor(const std::vector<v1::CurveBucket>& buckets, size_t limit);

// The same steps in at most `points` buckets (0: any number), none of which holds less than
// `least` steps.
std::vector<v1::CurveBucket> Fit(std::vector<v1::CurveBucket> buckets, size_t points,
                                 int64_t least);

}  // namespace nsa::server
