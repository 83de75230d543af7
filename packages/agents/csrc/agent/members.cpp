#include "agent/members.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <stdexcept>

namespace rpc_backends {

using torch::distributed::rpc::WorkerInfo;

void Members::on_unknown(std::function<void()> refresh) {
  std::unique_lock lock(mutex_);
  refresh_ = std::move(refresh);
}

bool Members::refresh() const {
  std::function<void()> refresh;
  {
    std::shared_lock lock(mutex_);
    refresh = refresh_;
  }
  if (refresh) {
    refresh();
  }
  return static_cast<bool>(refresh);
}

void Members::add(const std::string& name, int id) {
  std::unique_lock lock(mutex_);
  const auto known = by_id_.find(id);
  if (known != by_id_.end() && known->second->name_ == name) {
    return;
  }
  auto info = std::make_shared<WorkerInfo>(name, static_cast<int64_t>(id));
  if (known != by_id_.end()) {
    left_.push_back({known->second, {}});
  }
  by_id_[id] = info;
  by_name_[name] = info;
}

void Members::remove(int id, const std::string& how) {
  std::unique_lock lock(mutex_);
  const auto member = by_id_.find(id);
  if (member == by_id_.end()) {
    return;
  }
  left_.push_back({member->second, how});  // first: if this throws, nothing has changed
  const auto named = by_name_.find(member->second->name_);
  if (named != by_name_.end() && named->second == member->second) {
    by_name_.erase(named);
  }
  by_id_.erase(member);
}

const WorkerInfo* Members::find(const std::string& name) const {
  std::shared_lock lock(mutex_);
  const auto member = by_name_.find(name);
  return member == by_name_.end() ? nullptr : member->second.get();
}

const WorkerInfo* Members::find(int id) const {
  std::shared_lock lock(mutex_);
  const auto member = by_id_.find(id);
  return member == by_id_.end() ? nullptr : member->second.get();
}

template <typename Key>
const WorkerInfo& Members::get(const Key& key, const std::string& shown) const {
  if (const WorkerInfo* info = find(key)) {
    return *info;
  }
  if (refresh()) {
    if (const WorkerInfo* info = find(key)) {
      return *info;
    }
  }
  std::vector<std::string> names;
  for (const WorkerInfo& info : all()) {
    names.push_back(info.name_);
  }
  std::sort(names.begin(), names.end());
  std::string text =
      "Unknown destination worker " + shown + ": could not find destination among the members of the group (";
  for (size_t i = 0; i < names.size(); ++i) {
    text += (i ? ", " : "") + names[i];
  }
  throw std::runtime_error(text + ").");
}

const WorkerInfo& Members::by_name(const std::string& name) const {
  return get(name, name);
}

const WorkerInfo& Members::by_id(int id) const {
  if (has_left(id)) {
    return *find_left(id)->info;
  }
  return get(id, std::to_string(id));
}

std::vector<WorkerInfo> Members::all() const {
  std::shared_lock lock(mutex_);
  const std::map<int, std::shared_ptr<WorkerInfo>> in_order(by_id_.begin(), by_id_.end());
  std::vector<WorkerInfo> infos;
  infos.reserve(in_order.size());
  for (const auto& [id, info] : in_order) {
    infos.push_back(*info);
  }
  return infos;
}

const Members::Left* Members::find_left(int id) const {
  std::shared_lock lock(mutex_);
  const auto former =
      std::find_if(left_.rbegin(), left_.rend(), [id](const Left& left) { return left.info->id_ == id; });
  return former == left_.rend() ? nullptr : &*former;
}

bool Members::has_left(int id) const {
  return find(id) == nullptr && find_left(id) != nullptr;
}

std::string Members::how_it_left(int id) const {
  const Left* const left = find(id) == nullptr ? find_left(id) : nullptr;
  return left == nullptr ? std::string() : left->how;
}

std::string Members::name_of(int id) const {
  const WorkerInfo* info = find(id);
  if (info == nullptr) {
    const Left* const left = find_left(id);
    info = left == nullptr ? nullptr : left->info.get();
  }
  return info ? info->name_ : std::string();
}

std::string Members::called(int id) const {
  const std::string name = name_of(id);
  return name.empty() ? "worker " + std::to_string(id) : "'" + name + "'";
}

}  // namespace rpc_backends
