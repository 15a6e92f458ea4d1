export const handle = async () => 'esm';
export default { other: async () => 'default' };
