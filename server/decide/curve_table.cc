#include "server/decide/curve_table.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "server/decide/curve.h"

namespace nsa::server {
namespace {

constexpr float kNone = std::numeric_limits<float>::quiet_NaN();

bool Has(std::span<const std::string_view> names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

bool Wants(const ColumnNames& wanted, std::string_view name) {
  return wanted.empty() || std::ranges::find(wanted, name) != wanted.end();
}

// Adds one point: the entries `first`, `first` + `stride` and so on as one.
void AddPoint(const v1::CurveBucket& bucket, int first, int stride, v1::CurveColumn* column) {
  int64_t count = 0;
  int64_t nonfinite = 0;
  double sum = 0;
  float least = kNone;
  float greatest = kNone;
  for (int i = first; i < bucket.count_size(); i += stride) {
    if (i < bucket.nonfinite_size()) nonfinite += bucket.nonfinite(i);
    if (bucket.count(i) == 0) continue;
    // The product of a float and a count is exact, so that the mean of one entry keeps its bits.
    sum += static_cast<double>(bucket.mean(i)) * static_cast<double>(bucket.count(i));
    least = count == 0 ? bucket.least(i) : std::min(least, bucket.least(i));
    greatest = count == 0 ? bucket.greatest(i) : std::max(greatest, bucket.greatest(i));
    count += bucket.count(i);
  }
  column->add_count(count);
  column->add_nonfinite(nonfinite);
  column->add_mean(count == 0 ? kNone : static_cast<float>(sum / static_cast<double>(count)));
  column->add_least(least);
  column->add_greatest(greatest);
}

bool IsLower(const v1::WorkerRecord& a, const v1::WorkerRecord& b) {
  if (std::isnan(b.eval().loss())) return !std::isnan(a.eval().loss());
  return a.eval().loss() < b.eval().loss();
}

}  // namespace

std::string UnknownColumn(const ColumnNames& wanted) {
  for (const std::string& name : wanted) {
    if (!Has(kStepValues, name) && !Has(kLayerValues, name) && !Has(kGpuValues, name)) return name;
  }
  return "";
}

bool WantsAny(const ColumnNames& wanted, std::span<const std::string_view> names) {
  return std::ranges::any_of(names, [&](std::string_view name) { return Wants(wanted, name); });
}

v1::CurveTable TableOf(const std::vector<v1::CurveBucket>& buckets,
                       std::span<const std::string_view> names, Entries entries,
                       const ColumnNames& wanted) {
  v1::CurveTable table;
  table.set_width(buckets.empty() ? 1 : buckets.front().width());
  for (const v1::CurveBucket& bucket : buckets) {
    table.add_first_step(bucket.first_step());
    table.add_last_step(bucket.last_step());
    table.add_unix_nanos(bucket.unix_nanos());
    table.add_total_tokens(bucket.total_tokens());
  }
  for (size_t i = 0; i < names.size(); ++i) {
    if (!Wants(wanted, names[i])) continue;
    v1::CurveColumn& column = *table.add_columns();
    column.set_name(std::string(names[i]));
    for (const v1::CurveBucket& bucket : buckets) {
      const int stride = entries == Entries::kOfLayers ? static_cast<int>(names.size())
                                                       : std::max(bucket.count_size(), 1);
      AddPoint(bucket, static_cast<int>(i), stride, &column);
    }
    const bool all_finite =
        std::ranges::all_of(column.nonfinite(), [](int64_t n) { return n == 0; });
    if (all_finite) column.clear_nonfinite();
  }
  return table;
}

v1::ValidationCurve ValidationsOf(const std::vector<v1::WorkerRecord>& records, size_t most) {
  v1::ValidationCurve curve;
  const size_t limit = std::max<size_t>(most, 1);
  const size_t group = std::max<size_t>((records.size() + limit - 1) / limit, 1);
  for (size_t from = 0; from < records.size(); from += group) {
    const auto end =
        records.begin() + static_cast<std::ptrdiff_t>(std::min(from + group, records.size()));
    const auto lowest =
        std::min_element(records.begin() + static_cast<std::ptrdiff_t>(from), end, IsLower);
    curve.add_step(lowest->eval().step());
    curve.add_unix_nanos(lowest->unix_nanos());
    curve.add_loss(lowest->eval().loss());
    curve.add_seconds(lowest->eval().seconds());
  }
  return curve;
}

}  // namespace nsa::server
