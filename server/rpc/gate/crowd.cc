#include "server/rpc/gate/crowd.h"

#include <iterator>

namespace nsa::server {

Crowd::Crowd(const GateLimits& limits) : limits_(limits), shares_(limits.handshakes) {}

const Crowd::Neighbour* Crowd::Find(const std::string& name) const {
  const auto found = neighbours_.find(name);
  return found == neighbours_.end() ? nullptr : &found->second;
}

bool Crowd::HasTooMany(const Neighbour& neighbour) const {
  return neighbour.connections >= limits_.of_neighbour ||
         std::ssize(neighbour.strangers) >= limits_.strangers_of_neighbour;
}

bool Crowd::HasRoom(const std::string& neighbour) const {
  const Neighbour* const own = Find(neighbour);
  if (own != nullptr && HasTooMany(*own)) return false;
  return members_ < limits_.connections && strangers() < limits_.strangers;
}

std::optional<uint64_t> Crowd::Victim(const std::string& neighbour) const {
  const Neighbour* const own = Find(neighbour);
  const bool among_own = own != nullptr && (HasTooMany(*own) || !own->strangers.empty());
  const Strangers& from = among_own ? own->strangers : strangers_;
  if (from.empty()) return std::nullopt;
  return from.begin()->second;
}

Crowd::Member Crowd::Add(uint64_t id, const std::string& neighbour) {
  const auto at = neighbours_.try_emplace(neighbour, Neighbour{.name = neighbour}).first;
  const Member member(id, &at->second);
  ++members_;
  ++at->second.connections;
  at->second.strangers.emplace(false, id);
  strangers_.emplace(false, id);
  return member;
}

void Crowd::Note(Member* member, bool speaks, bool known) {
  if (member->known_ || (member->speaks_ == speaks && !known)) return;
  for (Strangers* const strangers : {&strangers_, &member->neighbour_->strangers}) {
    strangers->erase({member->speaks_, member->id_});
    if (!known) strangers->emplace(speaks, member->id_);
  }
  member->speaks_ = speaks;
  member->known_ = known;
}

void Crowd::Remove(const Member& member) {
  --members_;
  --member.neighbour_->connections;
  for (Strangers* const strangers : {&strangers_, &member.neighbour_->strangers}) {
    strangers->erase({member.speaks_, member.id_});
  }
}

bool Crowd::MayHandshake(const Member& member, absl::Duration now) {
  const Neighbour& own = *member.neighbour_;
  return shares_.May(own.name, own.HasKnown(), now);
}

void Crowd::NoteHandshake(const Member& member, absl::Duration processor, absl::Duration now) {
  const Neighbour& own = *member.neighbour_;
  shares_.Note(own.name, own.HasKnown(), processor, now);
}

void Crowd::Forget(absl::Duration now) {
  for (auto each = neighbours_.begin(); each != neighbours_.end();) {
    const Neighbour& neighbour = each->second;
    if (neighbour.HasKnown()) shares_.Trust(neighbour.name, now);
    each = neighbour.connections > 0 ? std::next(each) : neighbours_.erase(each);
  }
  shares_.Forget(now);
}

}  // namespace nsa::server
