// SPDX-License-Identifier: MIT
import holdfast from "./index.js";

export const { Client, Lock, LockSet, HoldfastError, services, version } = holdfast;
export default holdfast;
