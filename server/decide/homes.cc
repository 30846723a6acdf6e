#include "server/decide/homes.h"

#include <algorithm>

namespace nsa::server {

void NoteHomes(v1::StoredJob* stored) {
  const int64_t generation = stored->job().generation();
  auto& homes = *stored->mutable_homes();
  const auto same = [&](const v1::RankHomes& known) { return known.generation() == generation; };
  if (generation < 1 || stored->placements().empty() || std::ranges::any_of(homes, same)) return;
  v1::RankHomes& now = *homes.Add();
  now.set_generation(generation);
  for (const v1::RankPlacement& place : stored->placements()) {
    while (now.nodes_size() <= place.rank()) now.add_nodes();
    now.set_nodes(place.rank(), place.node());
  }
  while (homes.size() > kKeptHomes) homes.erase(homes.begin());
}

std::string HomeOf(const v1::StoredJob& stored, int64_t generation, int32_t rank) {
  for (const v1::RankHomes& known : stored.homes()) {
    if (known.generation() != generation) continue;
    return rank >= 0 && rank < known.nodes_size() ? known.nodes(rank) : "";
  }
  // A job that an earlier version started.
  if (generation != stored.job().generation()) return "";
  for (const v1::RankPlacement& place : stored.placements()) {
    if (place.rank() == rank) return place.node();
  }
  return "";
}

bool HasRunOn(const v1::StoredJob& stored, const std::string& node) {
  const auto has = [&](const v1::RankHomes& homes) {
    return std::ranges::find(homes.nodes(), node) != homes.nodes().end();
  };
  const auto is = [&](const v1::RankPlacement& place) { return place.node() == node; };
  return std::ranges::any_of(stored.homes(), has) || std::ranges::any_of(stored.placements(), is);
}

}  // namespace nsa::server
